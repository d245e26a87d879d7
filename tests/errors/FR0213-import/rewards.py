from elsewhere import exact
