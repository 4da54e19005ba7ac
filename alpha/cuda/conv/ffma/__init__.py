"""The three passes on FMA units, in float32: ConvV2, KS-deconv and Sk-dilated."""
