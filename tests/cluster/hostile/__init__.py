"""Clients in a hostile process: exceptions at any step, signal handlers, cancellations, forks, ended loops, threads.

Against a cluster of real parts in a thread of this process. `make test` strikes at a few steps of each call, spread
evenly; `make hostile` at every one (RAYLOG_HOSTILE_POINTS=all), which takes ten to twenty minutes on two cores. A step
is a place of our own code, with all its callers, at which CPython may run a signal handler; one that comes again with
the same callers, as in a loop, is struck at twice. Of asyncio clients a step is a wait: of the caller, or of any task
of the client, whose first is before it begins.

| file | what is done at each step | to what |
| --- | --- | --- |
| test_interrupted_clients | an exception | making and closing each client, calls of consumers, queues and pools |
| test_interrupted_producers | an exception | the calls of a producer, and its end |
| test_interrupted_transactions | an exception | the calls of a transaction |
| test_every_method | an exception | each call of an admin; it fails where a public method has no row |
| test_cancelled_clients | the caller, all others, or any one task is cancelled | calls of each asyncio client |
| test_signal_handlers | a handler uses a client, or closes it | calls of a producer, a consumer and an admin |
| test_outbox_and_inbox | an exception, an exit, a cancellation | relays, handlers with an inbox, added events |
| test_real_signals | signals at moments of their own | a producer and a consumer |
| test_user_code_that_exits | user code raises what ends a program | each place that calls user code |
| test_places, test_ends_of_handlers | forks, other loops, threads, pickles; ends amid handlers | each client |
"""
