"""Parse argv, call the api, render. No logic."""
