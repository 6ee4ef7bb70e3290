#include "serve/openai/shapes.h"

#include "serve/openai/prompt_part.h"
#include "serve/openai/writer.h"

#include <algorithm>
#include <utility>

namespace tally::serve::openai {
namespace {

void begin_answer(Writer& w, const AnswerHead& head, const char* chat_object) {
  w.begin_object().key("id").value(head.id);
  w.key("object").value(head.chat ? chat_object : "text_completion");
  w.key("created").value(head.created).key("model").value(head.model);
  w.key("system_fingerprint").value(head.fingerprint);
}

void write_logprobs(Writer& w, bool chat, int logprobs, const Piece& piece) {
  w.key("logprobs");
  if (logprobs < 0) {
    w.null();
  } else if (chat) {
    write_chat_logprobs(w, piece.logprobs);
  } else {
    write_completion_logprobs(w, piece.prompt.get(), piece.logprobs);
  }
}

void write_prompt_logprobs(Writer& w, const Piece& piece) {
  if (!piece.prompt || !piece.prompt->is_listed()) return;
  w.key("prompt_logprobs");
  piece.prompt->write_list(w);
}

void write_stop_reason(Writer& w, const StopReason& reason) {
  w.key("stop_reason");
  if (const auto* text = std::get_if<std::string>(&reason)) {
    w.value(*text);
  } else if (const auto* id = std::get_if<TokenId>(&reason)) {
    w.value(raw(*id));
  } else {
    w.null();
  }
}

void write_finish(Writer& w, const Piece& piece) {
  w.key("finish_reason");
  if (piece.finish_reason.empty()) {
    w.null();
  } else {
    w.value(piece.finish_reason);
    write_stop_reason(w, piece.stop_reason);
  }
}

void write_closing(Writer& w, const Closing& closing) {
  if (const auto& usage = closing.usage) {
    w.key("usage").begin_object().key("prompt_tokens").value(usage->prompt_tokens);
    w.key("completion_tokens").value(usage->completion_tokens);
    w.key("total_tokens").value(usage->prompt_tokens + usage->completion_tokens);
    w.key("prompt_tokens_details")
        .begin_object()
        .key("cached_tokens")
        .value(usage->cached_tokens)
        .end_object();
    if (usage->reasoning_tokens) {
      w.key("completion_tokens_details").begin_object();
      w.key("reasoning_tokens").value(*usage->reasoning_tokens).end_object();
    }
    w.end_object();
  }
  if (!closing.timings.empty()) w.key("timings").raw(closing.timings);
  if (!closing.receipt.empty()) w.key("receipt").raw(closing.receipt);
}

void write_call(Writer& w, const CallPiece& call, bool is_streamed) {
  w.begin_object();
  if (is_streamed) w.key("index").value(call.index);
  if (!call.name.empty()) w.key("id").value(call.id).key("type").value("function");
  w.key("function").begin_object();
  if (!call.name.empty()) w.key("name").value(call.name);
  w.key("arguments").value(call.arguments).end_object().end_object();
}

void write_calls(Writer& w, const std::vector<CallPiece>& calls, bool is_streamed) {
  if (calls.empty()) return;
  w.key("tool_calls").begin_array();
  for (const CallPiece& call : calls) write_call(w, call, is_streamed);
  w.end_array();
}

// Content stands where there is some, and where it is all there could be; null beside thoughts and calls.
void write_content(Writer& w, const Piece& piece) {
  w.key("content");
  const bool is_null = piece.text.empty() && (!piece.reasoning.empty() || !piece.calls.empty());
  is_null ? w.null() : w.value(piece.text);
}

void write_delta(Writer& w, const Piece& piece, bool is_first) {
  w.key("delta").begin_object();
  if (is_first) w.key("role").value("assistant");
  if (!piece.reasoning.empty()) w.key("reasoning_content").value(piece.reasoning);
  if (is_first || !piece.text.empty()) write_content(w, piece);
  write_calls(w, piece.calls, true);
  w.end_object();
}

void write_message(Writer& w, const Piece& piece) {
  w.key("message").begin_object().key("role").value("assistant");
  write_content(w, piece);
  w.key("refusal").null();
  if (!piece.reasoning.empty()) w.key("reasoning_content").value(piece.reasoning);
  write_calls(w, piece.calls, false);
  w.end_object();
}

bool begins_with_arguments(const CallPiece& call) { return !call.name.empty() && !call.arguments.empty(); }

// Everything but the arguments of calls that begin here, then those.
std::string split_event(const AnswerHead& head, const ChoiceStyle& style, const Piece& piece,
                        const ChunkExtras& extras) {
  Piece ahead, rest = piece;
  ahead.text.swap(rest.text), ahead.reasoning.swap(rest.reasoning), ahead.calls.swap(rest.calls);
  for (CallPiece& call : ahead.calls) {
    if (!begins_with_arguments(call)) continue;
    rest.calls.push_back({call.index, {}, {}, std::exchange(call.arguments, {})});
  }
  ChunkExtras first, later = extras;
  first.is_first = std::exchange(later.is_first, false);
  return chunk_event(head, style, ahead, first) + chunk_event(head, style, rest, later);
}

std::string as_event(Writer& w) { return "data: " + w.take() + "\n\n"; }

double per(double amount, double by) { return by > 0 ? amount / by : 0; }

}  // namespace

std::string chunk_event(const AnswerHead& head, const ChoiceStyle& style, const Piece& piece,
                        const ChunkExtras& extras) {
  if (std::any_of(piece.calls.begin(), piece.calls.end(), begins_with_arguments))
    return split_event(head, style, piece, extras);
  Writer w;
  begin_answer(w, head, "chat.completion.chunk");
  w.key("choices").begin_array().begin_object().key("index").value(style.index);
  if (head.chat) {
    write_delta(w, piece, extras.is_first);
  } else {
    w.key("text").value(piece.text);
  }
  write_logprobs(w, head.chat, style.logprobs, piece);
  write_finish(w, piece);
  w.end_object().end_array();
  if (extras.tally) {
    w.key("tally").begin_object().key("tokens").value(extras.tally->first);
    w.key("t_us").value(extras.tally->second).end_object();
  }
  if (extras.closing) write_closing(w, *extras.closing);
  w.end_object();
  return as_event(w);
}

std::string closing_event(const AnswerHead& head, const Closing& closing) {
  Writer w;
  begin_answer(w, head, "chat.completion.chunk");
  w.key("choices").begin_array().end_array();
  write_closing(w, closing);
  w.end_object();
  return as_event(w);
}

std::string whole_answer(const AnswerHead& head, int logprobs, const std::vector<Piece>& choices,
                         const Closing& closing) {
  Writer w;
  begin_answer(w, head, "chat.completion");
  w.key("choices").begin_array();
  for (size_t i = 0; i < choices.size(); ++i) {
    w.begin_object().key("index").value(i);
    if (head.chat) {
      write_message(w, choices[i]);
    } else {
      w.key("text").value(choices[i].text);
    }
    write_logprobs(w, head.chat, logprobs, choices[i]);
    write_finish(w, choices[i]);
    if (!head.chat) write_prompt_logprobs(w, choices[i]);
    w.end_object();
  }
  w.end_array();
  if (head.chat) write_prompt_logprobs(w, choices.front());
  write_closing(w, closing);
  w.end_object();
  return w.take();
}

std::string timings_json(const Account& account) {
  const engine::Receipt& r = account.receipt;
  const double prompt_n = static_cast<double>(r.prompt_tokens - r.cached_tokens);
  const double prompt_ms = r.prefill_s * 1000;
  const auto predicted_n = static_cast<double>(account.completion_tokens);
  const double predicted_ms =
      r.first_token_us > 0 ? static_cast<double>(r.last_us - r.first_token_us) / 1000 : 0;
  Writer w;
  w.begin_object()
      .key("cache_n")
      .value(r.cached_tokens)
      .key("prompt_n")
      .value(r.prompt_tokens - r.cached_tokens);
  w.key("prompt_ms")
      .milliseconds(prompt_ms)
      .key("prompt_per_token_ms")
      .milliseconds(per(prompt_ms, prompt_n));
  w.key("prompt_per_second").milliseconds(per(prompt_n * 1000, prompt_ms));
  w.key("predicted_n").value(account.completion_tokens).key("predicted_ms").milliseconds(predicted_ms);
  w.key("predicted_per_token_ms").milliseconds(per(predicted_ms, predicted_n));
  w.key("predicted_per_second").milliseconds(per(predicted_n * 1000, predicted_ms)).end_object();
  return w.take();
}

std::string receipt_json(const Account& account) {
  const engine::Receipt& r = account.receipt;
  Writer w;
  w.begin_object().key("seed").value(r.seed);
  w.key("queue_ms").milliseconds(r.queue_s * 1000).key("tokenize_ms").milliseconds(account.tokenize_ms);
  w.key("prefill_ms").milliseconds(r.prefill_s * 1000).key("stalled_ms").milliseconds(r.stalled_s * 1000);
  w.key("decode_ms").milliseconds(r.decode_s * 1000).key("sample_ms").milliseconds(r.sample_s * 1000);
  w.key("detokenize_ms").milliseconds(account.detokenize_ms).key("send_ms").milliseconds(account.send_ms);
  w.key("total_ms").milliseconds(account.total_ms);
  w.key("steps").value(r.steps).key("preemptions").value(r.preemptions);
  w.key("recomputed_tokens").value(r.recomputed_tokens).key("kv_disk_tokens").value(r.disk_tokens);
  w.key("kv_blocks").value(r.kv_blocks).key("kv_blocks_shared").value(r.kv_blocks_shared);
  w.key("kv_bytes").value(r.kv_bytes).key("weight_bytes_read").value(r.weight_bytes_read);
  w.key("draft_tokens").value(r.draft_tokens).key("accepted_tokens").value(r.accepted_tokens).end_object();
  return w.take();
}

std::string models_json(const std::string& id, int64_t created, uint32_t max_model_len, bool as_list) {
  Writer w;
  if (as_list) w.begin_object().key("object").value("list").key("data").begin_array();
  w.begin_object().key("id").value(id).key("object").value("model").key("created").value(created);
  w.key("owned_by").value("tally").key("root").value(id).key("parent").null();
  w.key("max_model_len").value(max_model_len).key("permission").begin_array().end_array().end_object();
  if (as_list) w.end_array().end_object();
  return w.take();
}

}  // namespace tally::serve::openai
