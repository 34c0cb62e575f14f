from hypothesis import settings

pytest_plugins = ["headrace.testing.fixtures"]

# How long an example takes tells more of the machine than of the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
