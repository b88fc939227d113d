from hypothesis import HealthCheck, settings

# Machines are noisy: time is measured in bench/, not here.
settings.register_profile("gpuslice", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpuslice")
