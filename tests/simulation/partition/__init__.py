"""The world of one partition: replicas, a controller, clients, disks and a network."""
