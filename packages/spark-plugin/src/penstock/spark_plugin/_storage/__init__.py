"""Files and small objects that lie wherever a URL says."""
