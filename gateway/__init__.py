"""The gateway: what clients talk to; it stands between draft and target and owns every session."""
