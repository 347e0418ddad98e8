"""Real parts for tests: software GPUs, phones, hosts, faults."""
