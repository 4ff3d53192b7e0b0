"""Many processes, killed clients, a restarted server: what was acknowledged is there afterwards."""
