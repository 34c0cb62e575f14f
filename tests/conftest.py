pytest_plugins = ["headrace.testing.fixtures"]
