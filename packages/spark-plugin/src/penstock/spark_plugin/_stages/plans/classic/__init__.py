"""Plans of a classic session, in its JVM."""
