"""Plans for people: functions over a plan and its progress."""
