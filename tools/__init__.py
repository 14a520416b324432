"""What builds the documentation: pages made from the code, pictures, recordings."""
