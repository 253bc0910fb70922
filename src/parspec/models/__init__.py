"""Finding, loading and running a model; its trunk-and-branch cache; attention."""
