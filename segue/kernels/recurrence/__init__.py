"""The recurrent layers' matrix state, plain and replayed (ReplaySSM): one definition and one kernel for three rules."""
