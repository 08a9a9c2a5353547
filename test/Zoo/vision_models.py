"""Networks of `torchvision`, `timm` and `diffusers`, as small as their constructors allow, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from case import BATCH, CLASSES, IMAGE, Case, Classifier, Inputs, images
from torch import nn

DEEP = 2 * IMAGE
"""Size of pictures for networks that would else normalize batches of two numbers, where PyTorch in f32 and f64, or on two processors, differ by far."""


def classifier(library: str, name: str, make: Callable[[], nn.Module], size: int = IMAGE, **case: Any) -> Case:
    return Case(name, library, lambda: Classifier(make()), images(size, name="x"), **case)


def without_dropout(net: nn.Module) -> nn.Module:
    """Where a configuration has no setting for it."""
    for part in net.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if hasattr(part, "dropout_prob"):  # of labels, in diffusers
            part.dropout_prob = 0.0
    return net


def timm_model(name: str, size: int = IMAGE, *, case: dict[str, Any] | None = None, **own: Any) -> Case:
    def make() -> nn.Module:
        import timm

        return without_dropout(timm.create_model(name, num_classes=CLASSES, **own))

    return classifier("timm", name, make, size, **(case or {}))


def torchvision_model(name: str, size: int = IMAGE, *, case: dict[str, Any] | None = None, **own: Any) -> Case:
    def make() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, num_classes=CLASSES, **own)

    return classifier("torchvision", name, make, size, **(case or {}))


class Denoiser(nn.Module):
    """A model of diffusers with the loss of its training: its `sample` against a target of the same sizes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, target: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        y = self.net(**inputs)
        return F.mse_loss(y if isinstance(y, torch.Tensor) else y.sample, target)


def diffusers_model(name: str, batch: Callable[[], Inputs], *, case: dict[str, Any] | None = None, **own: Any) -> Case:
    def make() -> nn.Module:
        import diffusers

        return Denoiser(without_dropout(getattr(diffusers, name)(**own)))

    return Case(name, "diffusers", make, batch, **(case or {}))


def noisy(*sizes: int, out: tuple[int, ...] | None = None, name: str = "sample", **more: Callable[[], torch.Tensor]) -> Callable[[],
    Inputs]:
    """Batches with one picture, its target, and further arguments."""
    return lambda: {"target": torch.randn(out or sizes), name: torch.randn(sizes)} | {key: draw() for key, draw in more.items()}


def vector(*sizes: int) -> Callable[[], torch.Tensor]:
    return partial(torch.randn, *sizes)


def times() -> torch.Tensor:
    return torch.randint(1000, (BATCH,))


def fractions() -> torch.Tensor:
    return torch.rand(BATCH)


def resnet(block: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision.models import resnet

        return resnet.ResNet(getattr(resnet, block), [1, 1, 1, 1], num_classes=CLASSES, width_per_group=64)

    return make


def convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=CLASSES)


def swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 16, [2, 1], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=CLASSES)


def vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(IMAGE, 8, 2, 4, 32, 64, num_classes=CLASSES)


def densenet() -> nn.Module:
    from torchvision.models import DenseNet

    return DenseNet(4, (2, 2), 8, num_classes=CLASSES)


TORCHVISION = [
    classifier("torchvision", "ResNet (basic blocks)", resnet("BasicBlock")),
    classifier("torchvision", "ResNet (bottlenecks)", resnet("Bottleneck")),
    classifier("torchvision", "ConvNeXt", convnext),
    classifier("torchvision", "SwinTransformer", swin),
    classifier("torchvision", "VisionTransformer", vit),
    classifier("torchvision", "DenseNet", densenet),
    torchvision_model("squeezenet1_1", dropout=0.0),
    torchvision_model("mobilenet_v3_small", DEEP, dropout=0.0),
    torchvision_model("shufflenet_v2_x0_5", DEEP),
]
TIMM = [
    timm_model("resnet10t", DEEP, channels=(8, 8, 16, 16), stem_width=8),
    timm_model("vit_tiny_patch16_224", img_size=IMAGE, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    timm_model("deit3_small_patch16_224", img_size=IMAGE, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    timm_model("beit_base_patch16_224", img_size=IMAGE, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    timm_model("eva02_tiny_patch14_224", img_size=IMAGE, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    timm_model("swin_tiny_patch4_window7_224", drop_path_rate=0.0, img_size=IMAGE, window_size=4, embed_dim=16, depths=(2, 1), num_heads=(2, 4)),
    timm_model("convnext_atto", dims=(8, 8, 16, 16), depths=(1, 1, 1, 1)),
    timm_model("mixer_s16_224", img_size=IMAGE),
    timm_model("gmlp_ti16_224", img_size=IMAGE),
    timm_model("cait_xxs24_224", img_size=IMAGE, patch_size=8, embed_dim=32, depth=2, num_heads=4),
    timm_model("xcit_nano_12_p16_224", img_size=IMAGE, embed_dim=32, depth=2, num_heads=4),
    timm_model("mobilenetv3_small_050", DEEP),
    timm_model("efficientnet_lite0", DEEP),
    timm_model("ghostnet_050", DEEP, drop_rate=0.0),
    timm_model("densenet121", DEEP, growth_rate=4, block_config=(2, 2)),
    timm_model("regnetx_002", DEEP),
    timm_model("edgenext_xx_small", dims=(8, 8, 16, 16), depths=(1, 1, 1, 1)),
    timm_model("levit_128s", img_size=64, embed_dim=(16, 24, 32), num_heads=(2, 3, 4), key_dim=8, depth=(1, 1, 1), size=64),
    timm_model("nf_resnet26", depths=(1, 1, 1, 1), channels=(16, 16, 32, 32)),
    timm_model("maxvit_rmlp_pico_rw_256", img_size=64, size=64, embed_dim=(32, 64), depths=(1, 1), block_type=("M", "M")),
]
DIFFUSERS = [
    diffusers_model("UNet2DModel", noisy(BATCH, 3, 16, 16, timestep=times), sample_size=16, block_out_channels=(8, 16), norm_num_groups=4,
        layers_per_block=1, attention_head_dim=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D",
        "UpBlock2D")),
    diffusers_model("UNet2DConditionModel", noisy(BATCH, 4, 16, 16, timestep=times, encoder_hidden_states=vector(BATCH, 6, 16)),
        sample_size=16, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, attention_head_dim=2, cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D")),
    diffusers_model("UNet1DModel", noisy(BATCH, 4, 32, out=(BATCH, 8, 32), timestep=times), in_channels=4, out_channels=8,
        extra_in_channels=0, block_out_channels=(8, 16), act_fn="silu", norm_num_groups=4, layers_per_block=1,
        time_embedding_type="positional", use_timestep_embedding=True, down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
        up_block_types=("UpResnetBlock1D", "UpResnetBlock1D"), mid_block_type="MidResTemporalBlock1D"),
    diffusers_model("AutoencoderKL", noisy(BATCH, 3, 16, 16), block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
    diffusers_model("AutoencoderTiny", noisy(BATCH, 3, 16, 16), encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1), case=dict(rejected="^capture: .*the loss has no gradient for it")),
    diffusers_model("DiTTransformer2DModel", noisy(BATCH, 4, 8, 8, name="hidden_states", timestep=times,
        class_labels=lambda: torch.randint(10, (BATCH,))), sample_size=8, num_layers=2, num_attention_heads=2, attention_head_dim=8,
        in_channels=4, out_channels=4, num_embeds_ada_norm=10),
    diffusers_model("FluxTransformer2DModel", noisy(BATCH, 16, 4, name="hidden_states", encoder_hidden_states=vector(BATCH, 6, 16),
        pooled_projections=vector(BATCH, 16), timestep=fractions, img_ids=lambda: torch.zeros(16, 3), txt_ids=lambda: torch.zeros(6, 3)),
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=16,
        pooled_projection_dim=16, axes_dims_rope=(4, 4, 8)),
    diffusers_model("SD3Transformer2DModel", noisy(BATCH, 4, 8, 8, name="hidden_states", encoder_hidden_states=vector(BATCH, 6, 16),
        pooled_projections=vector(BATCH, 16), timestep=times), sample_size=8, in_channels=4, out_channels=4, num_layers=2,
        attention_head_dim=8, num_attention_heads=2, joint_attention_dim=16, caption_projection_dim=16, pooled_projection_dim=16,
        pos_embed_max_size=8),
    diffusers_model("PixArtTransformer2DModel", noisy(BATCH, 4, 8, 8, name="hidden_states", encoder_hidden_states=vector(BATCH, 6, 16),
        timestep=times), sample_size=8, num_layers=2, num_attention_heads=2, attention_head_dim=8, out_channels=4, cross_attention_dim=16,
        caption_channels=16, use_additional_conditions=False),
    diffusers_model("AuraFlowTransformer2DModel", noisy(BATCH, 4, 8, 8, name="hidden_states", encoder_hidden_states=vector(BATCH, 6, 16),
        timestep=fractions), sample_size=8, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=16, caption_projection_dim=16, pos_embed_max_size=16),
    diffusers_model("SanaTransformer2DModel", noisy(BATCH, 4, 8, 8, name="hidden_states", encoder_hidden_states=vector(BATCH, 6, 16),
        timestep=times), sample_size=8, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2, attention_head_dim=8,
        num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=16),
    diffusers_model("WanTransformer3DModel", noisy(BATCH, 4, 2, 8, 8, name="hidden_states", encoder_hidden_states=vector(BATCH, 6, 16),
        timestep=times), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16, freq_dim=16,
        ffn_dim=32, num_layers=2, cross_attn_norm=True, rope_max_seq_len=32),
    diffusers_model("CogVideoXTransformer3DModel", noisy(BATCH, 2, 4, 8, 8, name="hidden_states", encoder_hidden_states=vector(BATCH, 6,
        16), timestep=times), num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=16, num_layers=2, sample_width=8, sample_height=8, sample_frames=5, max_text_seq_length=6),
    diffusers_model("UVit2DModel", lambda: {"target": torch.randn(BATCH, 16, 8, 8), "input_ids": torch.randint(16, (BATCH, 8, 8)),
        "encoder_hidden_states": torch.randn(BATCH, 6, 16), "pooled_text_emb": torch.randn(BATCH, 16), "micro_conds": torch.rand(BATCH,
        5)}, hidden_size=32, cond_embed_dim=16, encoder_hidden_size=16, vocab_size=17, codebook_size=16, in_channels=32,
        block_out_channels=32, num_hidden_layers=2, num_attention_heads=4, micro_cond_encode_dim=8, micro_cond_embed_dim=40,
        block_num_heads=4, num_res_blocks=1, sample_size=8),
]
CASES = TORCHVISION + TIMM + DIFFUSERS
