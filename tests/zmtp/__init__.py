"""Tests of ZeroMQ's protocol, against libzmq and against what breaks it."""
