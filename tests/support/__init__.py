"""What tests share: fakes at the seams and builders of small things."""
