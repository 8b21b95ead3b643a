from helpers.planned import make  # noqa: F401 - a fixture
