"""Listeners: what a user sees and keeps of training while it goes on."""
