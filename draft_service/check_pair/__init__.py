"""Whether a draft suits a target: what `forerun check-pair` runs, in a process of its own: both models are loaded."""
