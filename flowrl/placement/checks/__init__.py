"""What a request, an engine or an edge cannot be, whatever the sizes."""
