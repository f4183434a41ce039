"""The same small programs on Kafka, with confluent-kafka and kafka-python, and on Raylog: `make conformance`.

`programs` has the programs, written once against `kits.base`; each kit calls one client's own methods, one for one.
`differences` lists where Raylog is meant to behave another way, and why; docs/kafka.md has the same list.
"""
