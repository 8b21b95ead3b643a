from small_world import forget_plugins, world  # noqa: F401 - fixtures
