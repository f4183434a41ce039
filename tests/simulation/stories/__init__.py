"""Scripted schedules for bugs that are too rare for a profile."""
