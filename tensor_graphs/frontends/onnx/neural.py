"""neural: rows"""
