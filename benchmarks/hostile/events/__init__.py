"""Attacks on the endpoints of KV events, whose readers may be anyone who reaches them."""
