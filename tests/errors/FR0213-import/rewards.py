from elsewhere import exact  # noqa: F401
