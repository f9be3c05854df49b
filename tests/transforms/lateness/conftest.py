"""Settings of the property tests: examples start pipelines or Arrow, whose times vary."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "beam_lateness", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("beam_lateness")
