"""Weight sync: which device holds what of a model, what one `=>` edge moves over which link, and how long it takes."""
