"""Sessions: entries, transcript, forks, navigation, runs, the agent loop, compaction."""
