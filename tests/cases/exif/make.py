from pathlib import Path

from PIL import ExifTags, Image

Path("data").mkdir()
image = Image.new("RGB", (40, 20), (255, 0, 0))
image.paste((0, 0, 255), (0, 0, 20, 20))
exif = Image.Exif()
exif[ExifTags.Base.Orientation] = 6
image.save("data/phone.jpg", exif=exif, quality=95)
