"""The parts of gpu_check.py: each yields its checks one by one."""
