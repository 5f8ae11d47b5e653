"""The limiter's view of a request against the application's: hostile requests, and applications that compare both."""
