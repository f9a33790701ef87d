"""Commands about the command line itself: settings, completion, manual pages."""
