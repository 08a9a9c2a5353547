"""Architectures of `transformers`, each with two tiny layers and random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from case import BATCH, CLASSES, IMAGE, LENGTH, VOCABULARY, Case, Inputs, classes, images, padding, pair, text, tokens
from torch import nn

WIDTH, LAYERS, HEADS = 32, 2, 4
TINY: dict[str, Any] = {
    **dict.fromkeys(["hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size", "word_embed_proj_dim", "projection_dim"],
        WIDTH),
    **dict.fromkeys(["num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"], LAYERS),
    **dict.fromkeys(["num_encoder_layers", "num_decoder_layers"], LAYERS),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"], HEADS),
    **dict.fromkeys(["num_encoder_attention_heads", "num_decoder_attention_heads"], HEADS),
    "num_key_value_heads": 2,
    **dict.fromkeys(["intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim", "ffn_hidden_size"],
        2 * WIDTH),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], WIDTH),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"], 4),
    **dict.fromkeys(["num_experts_per_tok", "moe_k"], 2),
    **dict.fromkeys(["head_dim", "d_kv", "kv_channels"], WIDTH // HEADS),
    "vocab_size": VOCABULARY,
    **dict.fromkeys(["max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"], 64),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "image_size": IMAGE,
    "patch_size": 8,
}


def tiny(config_class: type, dropout: bool = False, **own: Any) -> transformers.PreTrainedConfig:
    """The class's configuration with what it has of TINY, no dropout (or its own), and `own`."""
    default = config_class()
    parts = {name: tiny(part, dropout) for name, part in config_class.sub_configs.items() if part is not transformers.AutoConfig}
    values = {key: value for key, value in TINY.items() if key in vars(default)}
    for key, value in vars(default).items():
        if not dropout and "drop" in key and isinstance(value, (int, float)) and not isinstance(value, bool):
            values[key] = type(value)(0)
    return config_class(**(parts | values | {"num_labels": CLASSES, "decoder_start_token_id": 1} | own))


def model(name: str, batch: Callable[[], Inputs], *, dropout: bool = False, case: dict[str, Any] | None = None, **own: Any) -> Case:
    """The case of one class of transformers; `own` are settings of its configuration, `case` of the case."""

    def make() -> nn.Module:
        kind = getattr(transformers, name)
        return kind(tiny(kind.config_class, dropout, **own))

    title = f"{name}, dropout" if dropout else name
    return Case(**(dict(name=title, library="transformers", make=make, batch=batch) | (case or {})))


def samples(count: int = 1600, name: str = "input_values", labels: Callable[[], torch.Tensor] = classes) -> Callable[[], Inputs]:
    """Batches of a model of sounds."""
    return lambda: {name: torch.randn(BATCH, count), "labels": labels()}


def spectra(*sizes: int, labels: Callable[[], torch.Tensor], name: str = "input_features") -> Callable[[], Inputs]:
    return lambda: {name: torch.randn(BATCH, *sizes), "labels": labels()}


def span() -> Inputs:
    """A batch of a model that answers questions."""
    return {"input_ids": tokens(), "start_positions": classes(LENGTH), "end_positions": classes(LENGTH)}


def sentence() -> Inputs:
    return {"input_ids": tokens(), "attention_mask": padding(), "labels": classes()}


def masked_pair() -> Inputs:
    return pair() | {"attention_mask": padding()}


def with_padding_of_labels() -> Inputs:
    """Without these the model writes to the labels, and asks them whether they have padding."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    return {"input_ids": tokens(), "labels": tokens(), "decoder_input_ids": tokens(), "decoder_attention_mask": mask}


masked = text(attention_mask=padding)
CONVOLUTIONS = dict(conv_dim=(16, 16, 16), conv_stride=(5, 4, 2), conv_kernel=(10, 4, 2), num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=2, mask_time_prob=0.0, mask_feature_prob=0.0)


class CTC(nn.Module):
    """A recogniser with the loss of labels that are padded, not packed."""

    def __init__(self, name: str, **own: Any) -> None:
        super().__init__()
        kind = getattr(transformers, name)
        self.net = kind(tiny(kind.config_class, **own))

    def forward(self, x, labels, lengths):
        scores = self.net(x).logits.log_softmax(-1).transpose(0, 1)
        frames = torch.full_like(lengths, scores.shape[0])
        return F.ctc_loss(scores, labels, frames, lengths)


DECODERS = [
    model("GPT2LMHeadModel", masked),
    model("GPTNeoForCausalLM", text(), attention_types=[[["global", "local"], 1]]),
    model("GPTNeoXForCausalLM", text()),
    model("GPTJForCausalLM", text(), rotary_dim=4),
    model("GPTBigCodeForCausalLM", text()),
    model("OpenAIGPTLMHeadModel", text()),
    model("CodeGenForCausalLM", text(), rotary_dim=4),
    model("OPTForCausalLM", masked),
    model("BloomForCausalLM", masked),
    model("FalconForCausalLM", text()),
    model("MptForCausalLM", text()),
    model("CTRLLMHeadModel", text(), dff=64),
    model("XGLMForCausalLM", text(), num_layers=2, attention_heads=4),
    model("BioGptForCausalLM", text()),
    model("LlamaForCausalLM", masked),
    model("MistralForCausalLM", masked),
    model("Qwen2ForCausalLM", text()),
    model("Qwen3ForCausalLM", text()),
    model("GemmaForCausalLM", text()),
    model("Gemma2ForCausalLM", text()),
    model("Gemma3ForCausalLM", text()),
    model("PhiForCausalLM", text()),
    model("Phi3ForCausalLM", text()),
    model("StableLmForCausalLM", text()),
    model("Starcoder2ForCausalLM", text()),
    model("CohereForCausalLM", text()),
    model("OlmoForCausalLM", text()),
    model("Olmo2ForCausalLM", text()),
    model("PersimmonForCausalLM", text()),
    model("NemotronForCausalLM", text()),
    model("GraniteForCausalLM", text()),
    model("SmolLM3ForCausalLM", text()),
    model("Glm4ForCausalLM", text()),
    model("HeliumForCausalLM", text()),
    model("BitNetForCausalLM", text()),
    model("DiffLlamaForCausalLM", text()),
    model("XLNetLMHeadModel", text(), d_inner=64),
    model("ReformerModelWithLMHead", text(), is_decoder=True, axial_pos_shape=(4, 4), axial_pos_embds_dim=(16, 16), attn_layers=["local",
        "local"], local_attn_chunk_length=4, attention_head_size=8, feed_forward_size=64, hash_seed=0,
        case=dict(rejected="^capture: .*(random number of Python|seeds random numbers)")),
]
RECURRENT = [
    model("MambaForCausalLM", text(), state_size=4),
    model("Mamba2ForCausalLM", text(), state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=8),
    model("FalconMambaForCausalLM", text(), state_size=4),
    model("RwkvForCausalLM", text(), attention_hidden_size=32, context_length=32),
    model("RecurrentGemmaForCausalLM", text(), lru_width=32, attention_window_size=8, num_hidden_layers=3),
    model("JambaForCausalLM", text(), mamba_d_state=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
        expert_layer_offset=1, use_mamba_kernels=False),
    model("BambaForCausalLM", text(), mamba_d_state=4, mamba_n_heads=8, mamba_d_head=8, mamba_chunk_size=8, attn_layer_indices=[1]),
    model("Zamba2ForCausalLM", text(), mamba_d_state=4, n_mamba_heads=8, mamba_headdim=8, chunk_size=8, layers_block_type=["mamba",
        "hybrid"], use_mamba_kernels=False),
    model("Lfm2ForCausalLM", text(), layer_types=["conv", "full_attention"]),
    model("Qwen3NextForCausalLM", text(), linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"]),
]
EXPERTS = [
    model("MixtralForCausalLM", masked),
    model("Qwen2MoeForCausalLM", text()),
    model("Qwen3MoeForCausalLM", text()),
    model("OlmoeForCausalLM", text()),
    model("GptOssForCausalLM", text()),
    model("DeepseekV2ForCausalLM", text(), q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
        n_group=2, topk_group=1, first_k_dense_replace=1, num_key_value_heads=4),
    model("DeepseekV3ForCausalLM", text(), q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
        n_group=2, topk_group=1, first_k_dense_replace=1, num_key_value_heads=4),
    model("PhimoeForCausalLM", text()),
    model("GraniteMoeForCausalLM", text()),
    model("JetMoeForCausalLM", text(), case=dict(rejected="^capture: .*Python number is taken from a tensor's value")),
    model("SwitchTransformersForConditionalGeneration", pair, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
        case=dict(rejected="^capture: .*size of the result of `nonzero` depends")),
]
ENCODERS = [
    model("BertForMaskedLM", masked),
    model("BertForSequenceClassification", sentence),
    model("BertForQuestionAnswering", span, num_labels=2),
    model("RobertaForMaskedLM", text()),
    model("XLMRobertaForTokenClassification", lambda: {"input_ids": tokens(), "labels": classes(CLASSES, BATCH, LENGTH)}),
    model("AlbertForMaskedLM", text()),
    model("DistilBertForMaskedLM", masked),
    model("ElectraForMaskedLM", text()),
    model("DebertaForMaskedLM", text()),
    model("DebertaV2ForMaskedLM", text(), relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"]),
    model("ModernBertForMaskedLM", masked),
    model("MPNetForMaskedLM", text()),
    model("MobileBertForMaskedLM", text(), intra_bottleneck_size=32, true_hidden_size=32, embedding_size=32),
    model("SqueezeBertForMaskedLM", text()),
    model("ConvBertForMaskedLM", text(), conv_kernel_size=3),
    model("FNetForMaskedLM", text()),
    model("FunnelForMaskedLM", text(), block_sizes=[1, 1], num_decoder_layers=1, d_head=8, d_inner=64),
    model("IBertForMaskedLM", text(), case=dict(rejected="^capture: .*branch depends on a tensor's value")),
    model("NystromformerForMaskedLM", text(), num_landmarks=4, segment_means_seq_len=16),
    model("RoFormerForMaskedLM", text()),
    model("RemBertForMaskedLM", text(), input_embedding_size=16, output_embedding_size=32),
    model("BigBirdForMaskedLM", text(), attention_type="original_full"),
    model("LongformerForMaskedLM", text(), attention_window=[8, 8]),
    model("XLMWithLMHeadModel", text()),
    model("EsmForMaskedLM", text(), position_embedding_type="rotary"),
    model("CanineForSequenceClassification", lambda: {"input_ids": tokens(BATCH, 32), "labels": classes()}, num_hash_buckets=64,
        local_transformer_stride=8),
    model("LayoutLMForMaskedLM", text()),
    model("PerceiverForMaskedLM", lambda: {"inputs": tokens(BATCH, 64), "labels": tokens(BATCH, 64)}, num_latents=8, d_latents=32,
        qk_channels=32, v_channels=32, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4),
]
ENCODER_DECODERS = [
    model("T5ForConditionalGeneration", pair),
    model("UMT5ForConditionalGeneration", pair),
    model("LongT5ForConditionalGeneration", pair, local_radius=3),
    model("BartForConditionalGeneration", masked_pair),
    model("MBartForConditionalGeneration", pair),
    model("PegasusForConditionalGeneration", pair),
    model("PegasusXForConditionalGeneration", pair, block_size=4, num_global_tokens=2),
    model("BlenderbotForConditionalGeneration", pair),
    model("MarianMTModel", pair, decoder_vocab_size=VOCABULARY),
    model("M2M100ForConditionalGeneration", pair),
    model("ProphetNetForConditionalGeneration", pair, num_encoder_attention_heads=4, num_decoder_attention_heads=4),
    model("LEDForConditionalGeneration", pair, attention_window=[4, 4], max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64),
    model("FSMTForConditionalGeneration", with_padding_of_labels, langs=["en", "de"],
        src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY),
]
VISION = [
    model("ViTForImageClassification", images()),
    model("DeiTForImageClassification", images()),
    model("BeitForImageClassification", images(), use_relative_position_bias=True),
    model("Dinov2ForImageClassification", images()),
    model("SwinForImageClassification", images(), patch_size=4, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4,
        hidden_size=None),
    model("Swinv2ForImageClassification", images(), patch_size=4, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4,
        hidden_size=None),
    model("ConvNextForImageClassification", images(), hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=4),
    model("ConvNextV2ForImageClassification", images(), hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=4),
    model("ResNetForImageClassification", images(), embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    model("RegNetForImageClassification", images(), embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4),
    model("BitForImageClassification", images(), embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_groups=2),
    model("MobileNetV2ForImageClassification", images(64), image_size=64, depth_multiplier=0.25),
    model("MobileViTForImageClassification", images(), image_size=32, patch_size=2, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 8,
        8, 16, 16, 32]),
    model("SegformerForImageClassification", images(), hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, num_attention_heads=[1,
        2], sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2]),
    model("SegformerForSemanticSegmentation", images(labels=lambda: classes(CLASSES, BATCH, IMAGE, IMAGE)), hidden_sizes=[8, 16],
        depths=[1, 1], num_encoder_blocks=2, num_attention_heads=[1, 2], sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2],
        mlp_ratios=[2, 2], decoder_hidden_size=16),
    model("PoolFormerForImageClassification", images(), hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, patch_sizes=[7, 3],
        strides=[4, 2], padding=[2, 1]),
    model("PvtForImageClassification", images(), hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, num_attention_heads=[1, 2],
        sequence_reduction_ratios=[2, 1], patch_sizes=[4, 2], strides=[4, 2], mlp_ratios=[2, 2]),
    model("LevitForImageClassification", images(64), image_size=64, patch_size=16, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 3,
        4], depths=[1, 1, 1], key_dim=[8, 8, 8]),
    model("CvtForImageClassification", images(), embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3],
        **dict.fromkeys(["drop_path_rate", "drop_rate", "attention_drop_rate"], [0.0, 0.0, 0.0])),
    model("FocalNetForImageClassification", images(), patch_size=4, embed_dim=16, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3,
        3], hidden_sizes=[16, 32]),
    model("EfficientNetForImageClassification", images(), width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320),
    model("ViTMAEForPreTraining", images(labels=None), decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_intermediate_size=64),
    model("ViTMAEForPreTraining", lambda: {"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "noise": torch.rand(BATCH, 16)},
        decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_intermediate_size=64,
        case=dict(name="ViTMAEForPreTraining, noise given")),
]
AUDIO = [
    model("Wav2Vec2ForSequenceClassification", samples(), **CONVOLUTIONS),
    model("Wav2Vec2ForCTC", samples(labels=lambda: tokens(BATCH, 4)), case=dict(rejected="^capture: .*`x\\[mask\\]` depends"),
        **CONVOLUTIONS),
    Case("Wav2Vec2ForCTC, own loss", "transformers", lambda: CTC("Wav2Vec2ForCTC", **CONVOLUTIONS),
        lambda: {"x": torch.randn(BATCH, 1600), "labels": tokens(BATCH, 4), "lengths": torch.randint(2, 5, (BATCH,))}, tolerance=5e-5,
        reason="PyTorch's own gradient of the first convolution, a sum over the waveform, is 1.7e-5 away from that in f64"),
    model("HubertForSequenceClassification", samples(), **CONVOLUTIONS),
    model("WavLMForSequenceClassification", samples(), **CONVOLUTIONS),
    model("UniSpeechForSequenceClassification", samples(), **CONVOLUTIONS),
    model("SEWForSequenceClassification", samples(), squeeze_factor=2, **CONVOLUTIONS),
    model("Data2VecAudioForSequenceClassification", samples(), **{k: v for k,
        v in CONVOLUTIONS.items() if "group" not in k} | dict(num_conv_pos_embedding_groups=2, num_conv_pos_embeddings=2)),
    model("WhisperForConditionalGeneration", spectra(8, 32, labels=lambda: tokens(BATCH, 12)), num_mel_bins=8, max_source_positions=16,
        suppress_tokens=None, begin_suppress_tokens=None),
    model("Speech2TextForConditionalGeneration", spectra(32, 8, labels=lambda: tokens(BATCH, 12)), input_feat_per_channel=8,
        conv_channels=16),
    model("ASTForAudioClassification", spectra(32, 16, labels=classes, name="input_values"), max_length=32, num_mel_bins=16,
        frequency_stride=8, time_stride=8),
    model("MoonshineForConditionalGeneration", samples(1600, labels=lambda: tokens(BATCH, 8)), encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1, encoder_num_attention_heads=4, decoder_num_attention_heads=4, encoder_num_key_value_heads=4,
        decoder_num_key_value_heads=4),
]
MULTIMODAL = [
    model("CLIPModel", lambda: {"input_ids": tokens(), "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "return_loss": True}),
    model("SiglipModel", lambda: {"input_ids": tokens(), "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "return_loss": True}),
    model("ViltForQuestionAnswering", lambda: {"input_ids": tokens(), "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE),
        "labels": torch.rand(BATCH, CLASSES)}),
    model("BlipForConditionalGeneration", lambda: {"input_ids": tokens(), "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE),
        "labels": tokens()}),
    model("GitForCausalLM", text(pixel_values=lambda: torch.randn(BATCH, 3, IMAGE, IMAGE))),
]
DROPPING = [  # as configured by default, in training
    model("GPT2LMHeadModel", masked, dropout=True),
    model("BertForMaskedLM", masked, dropout=True),
    model("T5ForConditionalGeneration", pair, dropout=True),
    model("BartForConditionalGeneration", masked_pair, dropout=True),
    model("DebertaV2ForMaskedLM", text(), dropout=True, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"]),
    model("SwinForImageClassification", images(), dropout=True, patch_size=4, embed_dim=16, depths=[1, 2], num_heads=[2, 4],
        window_size=4, hidden_size=None),
]
CASES = DECODERS + RECURRENT + EXPERTS + ENCODERS + ENCODER_DECODERS + VISION + AUDIO + MULTIMODAL + DROPPING
