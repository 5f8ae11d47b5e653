"""What a client is counted under."""
