import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** What the suite can call: takes the arguments of each component, calls the attention, and names its results. */
final class Components {
    /** By the names of their methods. */
    static final Map<String, Function<Arguments, Map<String, Tensor>>> METHODS = Map.of(
            "softmax", Components::softmax,
            "scaled_dot_product_attention", Components::attention,
            "scaled_dot_product_attention_gradient", Components::attentionGradient,
            "single_head_attention", Components::singleHead,
            "single_head_attention_gradient", Components::singleHeadGradient,
            "single_head_attention_step", Components::singleHeadStep,
            "multi_head_attention", Components::multiHead);

    private static final int[] NO_LEAD = {};

    private Components() {}

    private static Map<String, Tensor> softmax(Arguments given) {
        Tensor scores = given.input("scores", "... n");
        given.done();
        double[] data = new double[scores.data().length];
        int at = 0;
        for (double[] row : scores.rows()) {
            System.arraycopy(MyAttention.softmax(row), 0, data, at, row.length);
            at += row.length;
        }
        return Map.of("output", new Tensor(scores.dtype(), scores.shape(), data));
    }

    /** The arguments of attention: for each index of the leading axes a matrix. */
    private record Batch(
            int[] lead, List<double[][]> query, List<double[][]> key, List<double[][]> value, List<boolean[][]> masks) {

        static Batch of(Arguments given) {
            given.withoutDropout();
            Tensor query = given.input("query", "... q_seq d_k");
            Tensor key = given.input("key", "... kv_seq d_k");
            Tensor value = given.input("value", "... kv_seq d_v");
            int[] scores = query.shape().clone();
            scores[scores.length - 1] = key.axis(2);
            Tensor mask = given.mask(scores);
            return new Batch(
                    query.lead(2), query.matrices(), key.matrices(), value.matrices(),
                    mask == null ? null : mask.masks());
        }

        boolean[][] mask(int i) {
            return masks == null ? null : masks.get(i);
        }

        List<MyAttention.Attended> attended() {
            List<MyAttention.Attended> all = new ArrayList<>();
            for (int i = 0; i < query.size(); i++) {
                all.add(MyAttention.attend(query.get(i), key.get(i), value.get(i), mask(i)));
            }
            return all;
        }
    }

    private static Map<String, Tensor> attention(Arguments given) {
        Batch batch = Batch.of(given);
        given.done();
        List<MyAttention.Attended> all = batch.attended();
        Results results = new Results(given.dtype(), batch.lead());
        results.put("output", all, MyAttention.Attended::output);
        results.put("weights", all, MyAttention.Attended::weights);
        results.put("scores", all, MyAttention.Attended::scores);
        results.put("scaled_scores", all, MyAttention.Attended::scaledScores);
        return results.named();
    }

    private static Map<String, Tensor> attentionGradient(Arguments given) {
        Batch batch = Batch.of(given);
        List<double[][]> cotangents = given.input("cotangent", "... q_seq d_v").matrices();
        given.done();
        List<MyAttention.Attended> forward = batch.attended();
        List<MyAttention.Gradients> all = new ArrayList<>();
        for (int i = 0; i < forward.size(); i++) {
            all.add(MyAttention.backward(
                    batch.query().get(i), batch.key().get(i), batch.value().get(i), batch.mask(i),
                    forward.get(i).weights(), cotangents.get(i)));
        }
        Results results = new Results(given.dtype(), batch.lead());
        results.put("query", all, MyAttention.Gradients::query);
        results.put("key", all, MyAttention.Gradients::key);
        results.put("value", all, MyAttention.Gradients::value);
        return results.named();
    }

    private static MySingleHead head(Arguments given) {
        return new MySingleHead(
                matrix(given.param("w_q", "d_model d_model")),
                matrix(given.param("w_k", "d_model d_model")),
                matrix(given.param("w_v", "d_model d_model")),
                given.flag("causal"));
    }

    private static Map<String, Tensor> singleHead(Arguments given) {
        Tensor x = given.input("x", "seq d_model");
        MySingleHead head = head(given);
        given.done();
        MyAttention.Attended attended = head.forward(matrix(x));
        Results results = new Results(given.dtype(), NO_LEAD);
        results.put("output", attended.output());
        results.put("weights", attended.weights());
        results.put("query", head.projected().q());
        results.put("key", head.projected().k());
        results.put("value", head.projected().v());
        results.put("scores", attended.scores());
        return results.named();
    }

    private static Map<String, Tensor> singleHeadGradient(Arguments given) {
        Tensor x = given.input("x", "seq d_model");
        Tensor cotangent = given.input("cotangent", "seq d_model");
        MySingleHead head = head(given);
        given.done();
        head.forward(matrix(x));
        Results results = new Results(given.dtype(), NO_LEAD);
        results.put("x", head.backward(matrix(cotangent)));
        results.put("w_q", head.gradients().q());
        results.put("w_k", head.gradients().k());
        results.put("w_v", head.gradients().v());
        return results.named();
    }

    private static Map<String, Tensor> singleHeadStep(Arguments given) {
        Tensor x = given.input("x", "seq d_model");
        Tensor outputGradient = given.input("output_gradient", "seq d_model");
        double learningRate = given.amount("learning_rate");
        int steps = given.count("steps");
        MySingleHead head = head(given);
        given.done();
        double[][] xGradient = null;
        for (int i = 0; i < steps; i++) {
            head.forward(matrix(x));
            xGradient = head.backward(matrix(outputGradient));
            head.step(learningRate);
        }
        Results results = new Results(given.dtype(), NO_LEAD);
        results.put("x_gradient", xGradient);
        results.put("w_q", head.weights().q());
        results.put("w_k", head.weights().k());
        results.put("w_v", head.weights().v());
        return results.named();
    }

    private static Map<String, Tensor> multiHead(Arguments given) {
        given.withoutDropout();
        Tensor query = given.input("query", "batch q_seq d_query");
        Tensor key = given.input("key", "batch kv_seq d_key");
        Tensor value = given.input("value", "batch kv_seq d_value");
        int heads = given.count("num_heads");
        MyMultiHead attention = new MyMultiHead(
                heads,
                linear(given, "q", "d_query heads*d_k"),
                linear(given, "k", "d_key heads*d_k"),
                linear(given, "v", "d_value heads*d_v"),
                linear(given, "o", "heads*d_v d_model"));
        for (MyMultiHead.Linear linear : List.of(attention.q(), attention.v())) {
            int columns = linear.weight()[0].length;
            if (columns % heads != 0) {
                throw Refusal.of("num_heads", heads + " heads do not divide " + columns + " columns");
            }
        }
        int batch = query.axis(3);
        Tensor mask = given.mask(batch, heads, query.axis(2), key.axis(2));
        given.done();
        List<boolean[][]> masks = mask == null ? null : mask.masks();
        List<double[][]> queries = query.matrices();
        List<double[][]> keys = key.matrices();
        List<double[][]> values = value.matrices();
        List<MyMultiHead.Head> all = new ArrayList<>();
        List<double[][]> outputs = new ArrayList<>();
        for (int i = 0; i < batch; i++) {
            List<MyMultiHead.Head> own = attention.heads(
                    queries.get(i), keys.get(i), values.get(i),
                    masks == null ? null : masks.subList(i * heads, (i + 1) * heads));
            outputs.add(attention.joined(own));
            all.addAll(own);
        }
        Results results = new Results(given.dtype(), new int[] {batch, heads});
        results.put("weights", all, head -> head.attended().weights());
        results.put("q", all, MyMultiHead.Head::q);
        results.put("k", all, MyMultiHead.Head::k);
        results.put("v", all, MyMultiHead.Head::v);
        results.put("scaled_scores", all, head -> head.attended().scaledScores());
        results.put("heads", all, head -> head.attended().output());
        results.named().put("output", Tensor.of(given.dtype(), new int[] {batch}, outputs));
        return results.named();
    }

    private static MyMultiHead.Linear linear(Arguments given, String role, String axes) {
        double[][] weight = matrix(given.param("w_" + role, axes));
        Tensor bias = given.optionalParam("b_" + role, axes.split(" ")[1]);
        return new MyMultiHead.Linear(weight, bias == null ? null : bias.data());
    }

    private static double[][] matrix(Tensor tensor) {
        return tensor.matrices().get(0);
    }

    /** Results by name, all of one dtype and with the same leading axes. */
    private record Results(String dtype, int[] lead, Map<String, Tensor> named) {
        Results(String dtype, int[] lead) {
            this(dtype, lead, new LinkedHashMap<>());
        }

        void put(String name, double[][] matrix) {
            named.put(name, Tensor.of(dtype, lead, Collections.singletonList(matrix)));
        }

        <T> void put(String name, List<T> all, Function<T, double[][]> part) {
            named.put(name, Tensor.of(dtype, lead, all.stream().map(part).toList()));
        }
    }
}
