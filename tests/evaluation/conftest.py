from workspace import forget_plugins, world  # noqa: F401 - fixtures
