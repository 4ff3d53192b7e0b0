"""Recall: does the evidence for a question come up, and does it reach the prompt?"""
