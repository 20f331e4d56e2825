"""The drafters: ways to guess what the target will say next, behind one interface (`drafter.Drafter`)."""
