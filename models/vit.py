"""Vision transformers.  Parameters have torchvision's names."""

from __future__ import annotations

from alpha import Tensor, nn, ops
from alpha.errors import ConfigError, message

from . import register_model

EPS = 1e-6


class EncoderBlock(nn.Module):
    """y = a + mlp(ln_2(a)), a = x + self_attention(ln_1(x)); x of shape (N, tokens, channels).

    Args:
        channels: of a token, a multiple of `heads`; mlp has four times as many.
        heads: of the attention.
        dropout: behind the attention and behind each linear layer of mlp.
    """

    def __init__(self, channels: int, heads: int, dropout: float) -> None:
        self.ln_1 = nn.LayerNorm(channels, eps=EPS)
        self.self_attention = nn.MultiheadAttention(channels, heads, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(channels, eps=EPS)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Dropout(dropout),
                                 nn.Linear(4 * channels, channels), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.dropout(self.self_attention(y, y, y, need_weights=False)[0])
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    """Adds a learned position to each token, then `layers` blocks and a norm."""

    def __init__(self, tokens: int, channels: int, layers: int, heads: int, dropout: float) -> None:
        self.pos_embedding = nn.Parameter(0.02 * ops.randn((1, tokens, channels)))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential({f"encoder_layer_{k}": EncoderBlock(channels, heads, dropout)
                                     for k in range(layers)})
        self.ln = nn.LayerNorm(channels, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))


class VisionTransformer(nn.Module):
    """Patches as tokens behind a class token, an encoder, and a linear layer on the class token.

    Args:
        image_size: height and width of the images, a multiple of patch_size.
        patch_size: height and width of a patch.
        channels, layers, heads: of the encoder.
        num_classes: size of the output.
        dropout: see EncoderBlock.
    Raises:
        ConfigError: image_size is no multiple of patch_size, or dropout is not in [0, 1].
    """

    def __init__(self, image_size: int, patch_size: int, channels: int, layers: int, heads: int, num_classes: int,
                 dropout: float = 0.0) -> None:
        if patch_size < 1 or image_size < patch_size or image_size % patch_size:
            raise ConfigError(message("VisionTransformer", f"images of {image_size} pixels a side hold no whole number "
                                      f"of patches of {patch_size}", "pass an image_size that patch_size divides"))
        self.conv_proj = nn.Conv2d(3, channels, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(ops.zeros((1, 1, channels)))
        self.encoder = Encoder((image_size // patch_size) ** 2 + 1, channels, layers, heads, dropout)
        self.heads = nn.Sequential({"head": nn.Linear(channels, num_classes)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_proj(x).flatten(1, 2)
        x = ops.concat([self.class_token.expand((x.shape[0], 1, x.shape[-1])), x], axis=1)
        return self.heads(self.encoder(x)[:, 0])


@register_model
def vit_tiny_4(num_classes: int, image_size: int = 32, patch_size: int = 4, dropout: float = 0.0) -> VisionTransformer:
    """ViT of 192 channels, twelve layers and three heads (Dosovitskiy et al., arXiv 2010.11929), patches of 4x4.
    5,362,762 parameters with 10 classes.
    """
    return VisionTransformer(image_size, patch_size, 192, 12, 3, num_classes, dropout)
