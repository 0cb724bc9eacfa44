"""What the manager knows of the devices of its job."""
