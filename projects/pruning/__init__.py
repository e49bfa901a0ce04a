"""What scores of blocks are worth, on networks that others have trained."""
