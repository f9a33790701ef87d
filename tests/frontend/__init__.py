"""Tests of the text side, most of them against the implementations the models were made with."""
