"""Airfoil self-noise: the sound pressure of 1,503 wind-tunnel runs from 5 settings (NASA, UCI 291, CC BY 4.0).

Files: `airfoil_self_noise.csv` with a header, here or in tabular/, or UCI's `airfoil_self_noise.dat`.
"""

from __future__ import annotations

from turnout.data._tables import from_files

FEATURES = ("frequency_hz", "angle_deg", "chord_m", "velocity_mps", "suction_thickness_m")

load = from_files("airfoil", FEATURES, "sound_pressure_db", "airfoil_self_noise.csv", "airfoil_self_noise.dat")
