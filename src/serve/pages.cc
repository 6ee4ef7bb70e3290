#include "serve/pages.h"

#include "serve/build_info.h"
#include "serve/generate.h"
#include "serve/openai/requests.h"
#include "serve/openai/shapes.h"
#include "serve/openai/writer.h"

namespace tally::serve {
namespace {

PageResult wrong(ApiError error) { return {.body = {}, .error = std::move(error)}; }
PageResult right(std::string body) { return {.body = std::move(body), .error = {}}; }

void write_roofs(openai::Writer& w, const MachineRoofs& roofs) {
  w.key("roofs");
  if (roofs.bytes_per_s.empty()) {
    w.null();
    return;
  }
  w.begin_object().key("isa").value(roofs.isa).key("bytes_per_s").begin_object();
  for (const auto& [threads, rate] : roofs.bytes_per_s) w.key(std::to_string(threads)).value(rate);
  w.end_object().key("ops_per_s").begin_object();
  for (const auto& [kind, rate] : roofs.ops_per_s) w.key(kind).value(rate);
  w.end_object().key("kernel_ops_per_s").begin_object();
  for (const auto& [type, rates] : roofs.kernel_ops_per_s) {
    w.key(type).begin_object();
    for (const auto& [rows, rate] : rates) w.key(std::to_string(rows)).value(rate);
    w.end_object();
  }
  w.end_object().end_object();
}

// The text of one control token alone is that token: clients find the ids of eos_token and bos_token so. In
// any longer text it stays text.
base::Result<std::vector<TokenId>> encode_text(const text::Tokenizer& tokenizer,
                                               const openai::TokenizeRequest& request) {
  if (!request.add_special_tokens) {
    const auto id = tokenizer.special_token(request.prompt);
    if (id && tokenizer.kind(*id) == text::TokenKind::kControl) return std::vector{*id};
  }
  return tokenizer.encode(request.prompt, request.add_special_tokens, false);
}

// null where the vocabulary has no such token.
void write_special(openai::Writer& w, const text::Tokenizer& tokenizer, std::optional<TokenId> id) {
  id ? w.value(tokenizer.piece(*id)) : w.null();
}

}  // namespace

PageResult page_model(const Desk& desk, const std::string& path, bool as_list) {
  if (!as_list)
    if (auto error = judge_model(desk, path.substr(std::string_view("/v1/models/").size())))
      return wrong(*error);
  return right(openai::models_json(desk.settings.model_name, desk.created,
                                   desk.backend.engine->info().max_model_len, as_list));
}

PageResult page_tokenize(const Desk& desk, const std::string& body) {
  openai::TokenizeRequest request;
  if (auto error = openai::parse_tokenize(body, request)) return wrong(*error);
  if (!request.model.empty())
    if (auto error = judge_model(desk, request.model)) return wrong(*error);
  const auto ids = encode_text(*desk.backend.tokenizer, request);
  if (!ids)
    return wrong(
        {Code::kInvalidValue, "The prompt cannot be tokenized: " + echo(ids.error().message), "prompt"});
  openai::Writer w;
  w.begin_object()
      .key("count")
      .value(ids->size())
      .key("max_model_len")
      .value(desk.backend.engine->info().max_model_len);
  w.key("tokens").begin_array();
  for (TokenId id : *ids) w.value(raw(id));
  w.end_array().end_object();
  return right(w.take());
}

PageResult page_detokenize(const Desk& desk, const std::string& body) {
  openai::DetokenizeRequest request;
  if (auto error = openai::parse_detokenize(body, desk.backend.tokenizer->vocab_size(), request))
    return wrong(*error);
  if (!request.model.empty())
    if (auto error = judge_model(desk, request.model)) return wrong(*error);
  openai::Writer w;
  w.begin_object().key("prompt").value(desk.backend.tokenizer->decode(request.tokens, false)).end_object();
  return right(w.take());
}

PageResult page_tokenizer_info(const Desk& desk) {
  const text::Tokenizer& tokenizer = *desk.backend.tokenizer;
  openai::Writer w;
  w.begin_object().key("tokenizer_class").value("GGUF " + std::string(tokenizer.model()));
  w.key("chat_template");
  desk.backend.chat_template ? w.value(desk.backend.chat_template->source()) : w.null();
  w.key("bos_token");
  write_special(w, tokenizer, tokenizer.bos());
  w.key("eos_token");
  write_special(w, tokenizer, tokenizer.eos());
  w.key("unk_token");
  write_special(w, tokenizer, tokenizer.unknown());
  w.key("pad_token").null().key("add_bos_token").value(tokenizer.adds_bos());
  w.key("add_eos_token").value(tokenizer.adds_eos()).key("vocab_size").value(tokenizer.vocab_size());
  w.key("model_max_length").value(desk.backend.engine->info().max_model_len).end_object();
  return right(w.take());
}

// What passes read from a file: foreseen at load, and seen since.
void write_weight_stream(openai::Writer& w, const engine::WeightStreamStats& s) {
  w.key("weight_stream");
  if (s.layers == 0) {
    w.null();
    return;
  }
  w.begin_object().key("layers").value(s.layers).key("pass_bytes").value(s.pass_bytes);
  w.key("predicted_bytes_per_s");
  s.predicted_bytes_per_s > 0 ? w.value(s.predicted_bytes_per_s) : w.null();
  w.key("measured_bytes_per_s");
  s.read_s > 0 ? w.value(static_cast<double>(s.read_bytes) / s.read_s) : w.null();
  w.end_object();
}

PageResult page_settings(const Desk& desk) {
  openai::Writer w;
  w.begin_object().key("settings").begin_object();
  for (const ShownSetting& s : desk.settings.shown)
    w.key(s.name).begin_object().key("value").value(s.value).key("source").value(s.source).end_object();
  w.end_object().key("tuning").begin_array();
  for (const engine::Tuning& t : desk.backend.engine->info().tuning) {
    w.begin_object().key("type").value(t.type).key("prefetch_bytes").value(t.prefetch_bytes);
    w.key("chunk_bytes").value(t.chunk_bytes).key("row_cost").begin_array();
    for (const double c : t.row_cost) w.value(c);
    w.end_array().end_object();
  }
  w.end_array();
  write_weight_stream(w, desk.backend.engine->stats().weight_stream);
  write_roofs(w, desk.settings.roofs);
  w.end_object();
  return right(w.take());
}

PageResult page_reset_prefix_cache(const Desk& desk) {
  openai::Writer w;
  w.begin_object().key("freed_blocks").value(desk.backend.engine->reset_prefix_cache()).end_object();
  return right(w.take());
}

std::string page_version(const Desk* desk) {
  openai::Writer w;
  w.begin_object().key("version").value(kVersion).key("build").value(build_id());
  if (desk) w.key("isa").value(desk->backend.engine->info().isa);
  w.end_object();
  return w.take();
}

}  // namespace tally::serve
