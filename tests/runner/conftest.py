from workspace import world  # noqa: F401 - a fixture
