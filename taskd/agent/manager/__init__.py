"""Which manager is in charge, and becoming one."""
