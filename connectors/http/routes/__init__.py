"""What there is to ask the gateway for, one file per idea."""
