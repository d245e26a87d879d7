"""Trainers: fsdp."""
