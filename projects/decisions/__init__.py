"""What stiffness helps to decide: where steps go, an alarm, architectures."""
